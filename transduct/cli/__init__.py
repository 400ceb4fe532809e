"""The `transduct` command. `main.py` holds the program, every other module one command."""
