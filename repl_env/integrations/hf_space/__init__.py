"""A Space of Hugging Face with a server in it: its folder, its wheel, its upload."""
