"""The command line: `checkback VERB STORE`. Only this room prints, exits, or reads the environment."""
