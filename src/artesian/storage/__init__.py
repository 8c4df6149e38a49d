"""What is durable: the codec, blobs by digest, journals, and the store of a server."""
