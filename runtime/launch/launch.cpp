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
  open_missing_standard_streams();
  RankJob job(options);
  return job.run();
}

} // namespace tessera::runtime
