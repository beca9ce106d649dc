"""The other ranks as the leader sees them: greeted, sent every step, waited for, traced."""
