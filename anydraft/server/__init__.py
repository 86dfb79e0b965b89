"""An OpenAI-compatible server over one engine, and the page that shows where each token came from."""
