"""The pages of the console, a file each: what is asked, and what its template is given. Start with `jobs_now.py`."""
