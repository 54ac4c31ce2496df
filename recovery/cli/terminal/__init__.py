"""What the command line prints, and how: streams, progress bars, tables. The verbs call it; it calls no verb."""
