"""What a finished run found, where its champion loses, and who pays for what it gains."""
