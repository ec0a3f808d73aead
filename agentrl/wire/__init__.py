"""How processes of a run speak: frames, sockets, keys and a peer's side of the conversation.

    messages    what is said                      frames     bytes <-> messages, the only decoder
    outbox      what waits for its Ack            transport  sockets, the only importer of zmq
    peer        a worker, learner or driver       blocking   the same for a thread without a loop
    keys        CURVE keys of a run

Import the modules themselves: `messages` and `frames` load no zmq.
"""
