"""`heedful grade`: check every submission of a class, each in a process of its own, and write the table."""
