"""The Shepherd: keeps replica bytes on its own disk and vouches for them."""
