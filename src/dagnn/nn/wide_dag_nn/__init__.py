"""`WideDagNN`: a DAG whose nodes hold several units, with norms, dropout and heads; its settings, layout and file."""
