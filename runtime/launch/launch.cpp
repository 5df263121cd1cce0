// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/launch/launch.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/launch/rank_job.h"

#include <fcntl.h>
#include <unistd.h>

namespace tessera::runtime {

namespace {

/// Opens closed standard streams, since a pipe would otherwise get the number
/// of one.
void open_missing_standard_streams() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  ::close(fd);
}

} // namespace

int launch(const LaunchOptions& options) {
  TESSERA_CHECK(
      options.nproc >= 1,
      "nproc is {}; give the number of ranks to start, 1 or more",
      options.nproc);
  TESSERA_CHECK(
      !options.command.empty() && !options.command.front().empty(),
      "there is no program to launch; name one");
  TESSERA_CHECK(
      options.grace.count() >= 0,
      "grace is {} ms; give 0 or more",
      options.grace.count());
  const NodeOptions& nodes = options.nodes;
  TESSERA_CHECK(nodes.count >= 1, "nnodes is {}; give 1 or more", nodes.count);
  TESSERA_CHECK(
      nodes.rank >= 0 && nodes.rank < nodes.count,
      "node_rank is {} of {} nodes; give 0 to {}",
      nodes.rank,
      nodes.count,
      nodes.count - 1);
  TESSERA_CHECK(
      nodes.count == 1 || !nodes.master_addr.empty(),
      "master_addr is empty; give the address of node 0");
  TESSERA_CHECK(
      nodes.count == 1 ||
          (nodes.master_port >= 1 && nodes.master_port <= 65535),
      "master_port is {}; give a TCP port from 1 to 65535",
      nodes.master_port);
  TESSERA_CHECK(
      options.max_restarts >= 0,
      "max_restarts is {}; give 0 or more",
      options.max_restarts);
  open_missing_standard_streams();
  RankJob job(options);
  return job.run();
}

} // namespace tessera::runtime
