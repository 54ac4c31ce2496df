"""DAG files to start from: copy one into your DAG directory, and change the path of the store."""
