"""What producers need: their arguments, and where their messages go."""
