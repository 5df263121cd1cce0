// SPDX-License-Identifier: Apache-2.0
// tessera-run COMMAND ARGUMENTS...: the commands that need LibTorch, in one
// program. `tessera COMMAND` starts it.
#include "program_main.h"

int main(int argc, char** argv) {
  return tessera::tools::run_command(argc, argv);
}
