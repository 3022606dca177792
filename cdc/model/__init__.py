"""The nouns: log positions, events, schemas, errors, names of topics, records on their way to Kafka. Pure; imports
nothing else of `cdc`.
"""
