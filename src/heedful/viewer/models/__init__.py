"""The heads of a model that is read from files: the command, and the server of its page."""
