// Stand-in for XRT's ert.h: states of a command, and the packet that has a failed one's health
// data.
#pragma once

#include <cstdint>

enum ert_cmd_state {
  ERT_CMD_STATE_NEW = 1,
  ERT_CMD_STATE_QUEUED = 2,
  ERT_CMD_STATE_RUNNING = 3,
  ERT_CMD_STATE_COMPLETED = 4,
  ERT_CMD_STATE_ERROR = 5,
  ERT_CMD_STATE_ABORT = 6,
  ERT_CMD_STATE_SUBMITTED = 7,
  ERT_CMD_STATE_TIMEOUT = 8,
  ERT_CMD_STATE_NORESPONSE = 9,
  ERT_CMD_STATE_SKERROR = 10,
  ERT_CMD_STATE_SKCRASHED = 11,
};

struct ert_packet {
  uint32_t state : 4;
  uint32_t custom : 8;
  uint32_t count : 11;
  uint32_t opcode : 5;
  uint32_t type : 4;
  uint32_t data[1];  // `count` words
};
