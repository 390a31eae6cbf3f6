"""Problems that papers pose, and what the papers print of them."""
