"""The pages of ``infra/docs`` as a site."""
