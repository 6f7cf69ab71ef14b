"""Messages between nodes: what travels, who may send it, on which lane, and the sockets.

ZeroMQ connects any two nodes; `boki.net.local` adds a stream where both are on one machine.

**Liveness is the kernel's and the protocol's, never libzmq's.** A node that stalls (a suspended laptop, a paused
virtual machine, SIGSTOP) stops reading. ZeroMQ then fills the socket's queue and stops the connection's input. If the
peer closes the connection in that state, libzmq 4.3 marks its engine `_io_error` but keeps it until the queue is read.
A heartbeat that falls due meanwhile (ZMQ_HEARTBEAT_IVL), or a PING among what is still buffered, calls `out_event`,
and `zmq_assert (!_io_error)` in stream_engine_base.cpp ends the process (zeromq/libzmq issues 3937, 4364 and 4767,
open). All timers of a node that stalled fall due at once when it continues, so whole clusters ended together.

Therefore no socket here sets ZMQ_HEARTBEAT_*. TCP keepalive and TCP_USER_TIMEOUT (ZMQ_TCP_MAXRT) close a connection to
a host that is gone after six seconds. The kernel answers probes for a process that stalls, so its connections
outlive the halt. Whether a *node* is alive is decided above: `Ping` and `Pong` of the controllers.
"""
