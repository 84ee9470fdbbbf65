"""The network between members: slots over Zenoh, and the protocol's messages over the slots."""
