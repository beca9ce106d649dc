"""`chorus bench`: an OpenAI endpoint measured from where its user stands, whoever has made it."""
