"""Format results as text: tables, Markdown, CSV, JSON, JUnit and Nagios lines."""
