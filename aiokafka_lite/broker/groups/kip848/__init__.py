"""Groups of KIP-848: ConsumerGroupHeartbeat, and members that still speak the classic protocol."""
