"""The stream protocol: `connection.py` has the connection's states, `requests.py` what can be asked."""
