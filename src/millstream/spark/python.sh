#!/bin/sh
# The Python of Spark's processes, without Spark's zip of PySpark in front of the installed one: Python keeps no
# compiled modules for a zip, so each process would compile all that it imports of it. See docs/decisions/0009.
kept=
set -f
IFS=:
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*.zip) ;;
        *) kept=$kept${kept:+:}$entry ;;
    esac
done
unset IFS
PYTHONPATH=$kept exec "${MILLSTREAM_PYTHON:-python3}" "$@"
