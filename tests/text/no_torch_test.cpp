// SPDX-License-Identifier: Apache-2.0
#include "support/paths.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace tessera::text {
namespace {

/// What is mapped into this process, which links tessera::text.
std::string mapped_files() {
  std::ifstream maps("/proc/self/maps");
  std::ostringstream text;
  text << maps.rdbuf();
  return text.str();
}

TEST(Text, LinksWithoutLibTorch) {
  const std::string files = mapped_files();
  EXPECT_NE(files.find("libtessera_text.so"), std::string::npos) << files;
  for (const char* library : {"libtorch", "libc10", "libtessera_runtime.so"}) {
    EXPECT_EQ(files.find(library), std::string::npos) << library;
  }
}

} // namespace
} // namespace tessera::text
