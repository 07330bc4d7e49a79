from tasks.data.client_data import *  # noqa: F403
