"""Messages for people: those that are looked for, those that wait, and those that are carried elsewhere."""
