"""MACHINE. Protocol events become calls of the broker; what the broker does becomes protocol. The protocol ends here."""
