"""The web page of `inline explore`: attention of up to four models from the point that is clicked."""

from ..compat import disable_gradio_analytics

disable_gradio_analytics()  # before any module of this room imports gradio
