"""Operations of the package."""
