// Runs the models once, then again every second.
#include "@FIRST_HEADER@"
#include "program.h"

void setup()
{
    program_main();
}

void loop()
{
    delay(1000);
    program_main();
}
