"""Start, supervise and end worker processes, on one node or several.

The supervisor's side imports no torch; `worker` and `node_member` do, since they run inside the workers.
Others start jobs through `supervisor.Supervisor` and describe them by `jobs`.
"""
