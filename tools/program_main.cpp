// SPDX-License-Identifier: Apache-2.0
#include "program_main.h"
#include "usage_error.h"

#include "tessera/runtime/core/log.h"

#include <c10/util/Exception.h>

namespace tessera {

std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error, {argv + 1, argv + argc});
  }
  return std::nullopt;
}

int guarded_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    log_error(error.what_without_backtrace());
  } catch (const std::exception& error) {
    log_error(error.what());
  }
  return 1;
}

} // namespace tessera
