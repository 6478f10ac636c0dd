"""Who may connect, and how: listeners, TLS, SASL.

| module | what it does |
|---|---|
| `listener.py` | what a listener is; which may be opened where |
| `tls.py`, `certificates.py` | TLS contexts; throw-away certificates for tests |
| `mechanism.py`, `plain.py`, `scram.py`, `oauth.py` | the broker's half of each mechanism |
| `credentials.py`, `tokens.py` | users and their credentials; the tokens of OAUTHBEARER |
| `authenticator.py` | a connection's authentication as a state machine without I/O |
| `session.py` | drives it: executor, delays, timers |

`cluster_security.py`, one folder up, has the parts that exist once in a cluster.
"""
