"""Everything of Spark that is not public API, in one place: nothing outside this package touches it.

`java.py` lists the Java classes and members that are used and checks, once per JVM, that this build of Spark has them.
The other modules wrap them in small typed functions, and hold the adapters for what differs between Spark versions.
"""
