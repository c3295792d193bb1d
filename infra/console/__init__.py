"""The web console: what the database and the topic of alerts hold, as pages."""
