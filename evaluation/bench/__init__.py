"""What a step costs on a machine, beside the bare arithmetic of the same shapes; random weights, no benchmark."""
