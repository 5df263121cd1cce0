// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/log.h"

#include <gtest/gtest.h>

namespace tessera::log_test {

TEST(Log, ShowsControlCharactersOfNames) {
  ::testing::internal::CaptureStderr();
  log_info("{}", "'a\x1b[2J\rb\x7f'\n\tnext, Zo\xc3\xab");
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "tessera: 'a\\x1b[2J\\x0db\\x7f'\n\tnext, Zo\xc3\xab\n");
}

} // namespace tessera::log_test
