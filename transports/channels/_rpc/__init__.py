"""What the channels over gRPC and QUIC share: streams of messages between members."""
