"""Programs that use Millstream, each complete in itself."""
