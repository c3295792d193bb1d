"""The pages of the console, one file each: what is asked, and what a template is given."""
