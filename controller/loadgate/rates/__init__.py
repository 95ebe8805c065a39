"""Has this client anything left?"""
