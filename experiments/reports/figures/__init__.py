"""Plain data drawn as SVG."""
