"""The models of a server, each a group of processes of its own: who is loaded, who makes room, who owns them."""
