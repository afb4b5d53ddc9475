"""What an exported library and the package promise to their surroundings, checked from outside."""
