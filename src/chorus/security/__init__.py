"""Who is who: the cluster's token and authority, identities of nodes, API keys."""
