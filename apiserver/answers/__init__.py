"""What the API answers: a model per JSON answer, by area.

The models describe: OpenAPI names them, and an example of an answer is put together from those of its fields. They do
not check what is answered, which takes 50 times as long as to write it: the tests hold each answer against its model,
and refuse a field that the model lacks.
"""
