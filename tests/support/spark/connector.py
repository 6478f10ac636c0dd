"""The jars of Spark's own Kafka source, which ours is compared with.

The versions are a set that works with pyspark 4.2 and 4.3: no connector of version 4.3.0 could be
fetched, nor a token provider of version 4.2.0. What Spark brings itself is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.maven import Jars

CONNECTOR_VERSION: Final = "4.2.0"
_TOKEN_PROVIDER_VERSION: Final = "4.0.0"
_KAFKA_CLIENTS_VERSION: Final = "3.9.2"
_SCALA: Final = "2.13"

# Spark's parent POM names a mirror of Maven Central that must be asked for every jar, and may not
# be within reach: the same name is given to a repository that is switched off.
_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>aiokafka-lite</groupId><artifactId>spark-connector</artifactId><version>1</version>
  <repositories>
    <repository>
      <id>gcs-maven-central-mirror</id>
      <url>https://repo.maven.apache.org/maven2</url>
      <releases><enabled>false</enabled></releases>
      <snapshots><enabled>false</enabled></snapshots>
    </repository>
  </repositories>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-sql-kafka-0-10_{_SCALA}</artifactId>
      <version>{CONNECTOR_VERSION}</version>
      <exclusions>
        <exclusion>
          <groupId>org.apache.spark</groupId>
          <artifactId>spark-token-provider-kafka-0-10_{_SCALA}</artifactId>
        </exclusion>
        <exclusion>
          <groupId>org.scala-lang</groupId><artifactId>scala-library</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.spark</groupId>
      <artifactId>spark-token-provider-kafka-0-10_{_SCALA}</artifactId>
      <version>{_TOKEN_PROVIDER_VERSION}</version>
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-clients</artifactId>
      <version>{_KAFKA_CLIENTS_VERSION}</version>
      <exclusions>
        <!-- Spark has its own, of other versions. -->
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""

_JARS: Final = Jars(
    f"spark-connector-{CONNECTOR_VERSION}", "Spark's Kafka connector (about 8 MB)", _POM
)


def connector_jars() -> list[Path]:
    """Return the jars to be named by `spark.jars`, fetching them once.

    Raises:
        JarsUnavailableError: They are not cached, and `mvn` is missing or fails.
    """
    return sorted(_JARS.fetch().glob("*.jar"))
